# Match: the compiled bindings of one exchange. Contract of match.pyx.
#
# A destination is any struct that begins with dest_t. match_route appends each matched destination
# once per routing, and writes nothing into it, nor into the bindings: what a routing has reached is
# known to its targets_t alone, and to the tables of whoever routes (of a loop) when that is much.
from bytes cimport i64, u8, u32, u64

cdef enum match_kind:
    MATCH_DIRECT = 0    # exact key
    MATCH_FANOUT = 1    # every destination
    MATCH_TOPIC = 2     # words with * and #
    MATCH_HEADERS = 3   # header tests
    MATCH_HASH = 4      # one destination, by consistent hashing
    MATCH_RANDOM = 5    # one destination, any
    MATCH_MODULUS = 6   # one destination, by the hash of the key modulo their number
    MATCH_FILTERS = 7   # levels with + and #: subscriptions of MQTT, by filters_route alone
    MATCH_REVERSED = 8  # exact keys, found by words with * and # in the routing key

cdef enum match_result:
    MATCH_ADDED = 1         # bound; unbind answers it for "removed"
    MATCH_UNCHANGED = 0     # was there already, or nothing to remove
    MATCH_NO_MEMORY = -1    # nothing has changed
    MATCH_BAD_MODE = -2     # headers: x-match is neither the string "all" nor "any"
    MATCH_BAD_INPUT = -3    # headers: malformed or too deep table; topic: key above 255 bytes
    MATCH_BAD_WEIGHT = -4   # hash: the key is no unsigned 32-bit number; unbind answers it, too
    MATCH_TOO_HEAVY = -5    # hash: more than HASH_POINTS_MAX points
    MATCH_BAD_HEADER = -6   # match_route, hash: the header to hash on is no string
    MATCH_TIRED = 2         # match_route: this turn is over; the same call again goes on

cdef enum match_limit:
    TOPIC_KEY_MAX = 255     # bytes of a short string
    TOPIC_WORDS_MAX = 256   # 255 dots part 256 empty words
    HEADER_NESTED_MAX = 64  # larger nested tables are equal only with the same order of keys
    HEADER_INLINE = 64      # fields indexed on the stack; a longer table costs one allocation
    HASH_POINTS_MAX = 262144    # of a ring: 4 MiB
    MATCH_LOOK = 4096       # units of work between two questions whether the turn is over
    TOPIC_QUICK = 8192      # nodes visited by the quick way before the other one is taken
    REACHED_FEW = 8           # destinations of a routing that are looked through one by one
    FILTER_LEVELS_MAX = 200     # of a filter with wildcards: each one takes a node
    TOPIC_MAX = 65535       # bytes of a topic or a filter of MQTT

cdef enum dest_kind:
    DEST_QUEUE = 0
    DEST_EXCHANGE = 1
    DEST_SUBSCRIPTION = 2

cdef struct topic_node_t
cdef struct match_link_t
cdef struct subscription_t

cdef struct topic_nodes_t:  # a list of nodes
    const topic_node_t** items
    u32 n
    u32 cap
    u32 n_reached           # the first of them, which stand in the table
    u64 generation          # by which they are known there

cdef struct dest_t:
    u8 kind                 # a dest_kind
    u8 is_gone              # it is deleted: no routing takes it

# Which addresses were reached in a generation: an open hash table. Entries of older generations are
# free; routings that take turns overwrite each other's.
cdef struct reached_slot_t:
    const void* what
    u64 generation

cdef struct reached_table_t:
    reached_slot_t* slots
    u32 cap                 # a power of two, or 0
    u64 generation          # the one that began last

# What the routings of one loop share.
cdef struct reached_t:
    reached_table_t dests   # a generation is one routing
    reached_table_t nodes   # topic: a generation is one list of nodes
    u64 random              # state of what is random

# Filters: a node that is to be looked at, reached by the levels of a topic before `at`.
cdef struct filter_step_t:
    const topic_node_t* node
    u32 at                  # of the next level; one more than the length behind the last
    bint is_entered         # its '#' is taken

cdef struct filter_steps_t:
    filter_step_t* items
    u32 n
    u32 cap

# Where match_route goes on. What it points at is valid as long as no binding has changed.
cdef struct match_cursor_t:
    bint is_begun           # headers: those that every message reaches are there
    bint is_slow            # topic: by positions, because the quick way was too much
    u32 n_before            # headers: destinations before this call
    u32 at                  # of what is worked through: destination, field, or node
    u32 dest                # topic: destination of that node
    u32 quick_end           # topic: work at which the quick way is given up
    match_link_t* link      # headers: next in the chain of that field; reversed: the key there
    u32 word                # topic: position in the key
    topic_nodes_t here      # topic: nodes reached by the words before that position
    topic_nodes_t next      # and those reached with it
    filter_steps_t steps    # filters: the deepest one last

# Asked by match_route after so much work whether its turn is over.
ctypedef bint (*match_pause_t)(void* pauser, u32 work) noexcept nogil

cdef struct targets_t:
    dest_t** items      # matched destinations of one message; targets_free frees
    u32 n
    u32 cap
    reached_t* reached      # shared with the other routings of a loop
    u32 n_reached         # the first of them, which stand there
    u64 generation      # by which they are known there
    u64 n_again         # matches of what was there already; only its changes mean anything
    u32 work            # in units of about 10 ns, since the last question
    u32 look            # after which it is asked, MATCH_LOOK or less
    match_pause_t pause     # NULL = never
    void* pauser
    bint is_tired           # the cursor says where it goes on
    match_cursor_t cursor

# First member of everything that lives in a match_table_t.
cdef struct match_link_t:
    match_link_t* next
    match_link_t** at       # what points here, so that a long chain costs no walk; NULL = its slot
    u64 hash

# Chained hash table; owns only its slots. It grows and shrinks slot by slot: with all of them at
# once everybody would wait, the longer the more there is in it.
cdef struct match_table_t:
    match_link_t** slots    # room for mask + 1
    u32 mask                # a power of two, less one
    u32 n_slots             # in use, half of them at least
    u32 n

# Has what is in a slot go to where it belongs now: that depends on how it is linked.
ctypedef void (*match_rehome_t)(match_table_t* table, u32 at) noexcept nogil

cdef union match_items_t:
    dest_t* one         # cap == 0: the only destination, no allocation
    dest_t** many

cdef struct match_dests_t:
    u32 n
    u32 cap
    match_items_t at

# One literal binding key; its bytes follow the struct.
cdef struct match_key_t:
    match_link_t link
    match_dests_t dests
    u32 key_len

# One word of the binding keys with wildcards; a literal word's bytes follow the struct, and the
# link is there for literal words only.
cdef struct topic_node_t:
    topic_node_t* parent
    topic_node_t* star
    topic_node_t* hash
    match_dests_t dests     # bindings that end here
    u32 n_literals          # children that are literal words
    u32 word_len
    match_link_t link       # in match_t.nodes; must stay last

cdef struct topic_words_t:
    const u8* key
    u32 n
    u32 start[TOPIC_WORDS_MAX]
    u32 length[TOPIC_WORDS_MAX]
    u64 hash[TOPIC_WORDS_MAX]

# One non-"x-" argument of a headers binding.
cdef struct header_pair_t:
    match_link_t link       # in match_t.pairs, by key and value
    header_binding_t* binding
    const u8* key           # inside the binding
    const u8* value         # inside the binding, at its type octet
    u64 key_hash
    u32 key_len
    u32 value_len

# One headers binding; its pairs, key bytes and argument bytes follow the struct.
cdef struct header_binding_t:
    match_link_t link       # in match_t.bindings, by key, arguments and destination
    dest_t* dest
    u32 key_len
    u32 args_len
    u32 n_pairs
    u32 picked              # x-match all: the one pair that stands in match_t.pairs
    bint is_any
    bint is_with_x          # keys beginning with "x-" take part, too

# One header of the message being routed.
cdef struct header_field_t:
    u64 key_hash
    const u8* key
    const u8* value         # at its type octet
    u32 key_len
    u32 value_len

# Headers of the message being routed that may matter, by key.
cdef struct header_index_t:
    header_field_t* fields
    u32* slots              # field number + 1, 0 = free
    u32 mask
    u32 n

# One filter of one queue, with what its subscription asked for: there may be a million.
cdef struct subscription_t:
    dest_t dest             # must stay first
    u8 qos
    u8 is_no_local          # nothing that the session has published itself
    u8 is_apart             # nothing that comes from AMQP
    u8 keeps_retain         # retain as published
    u32 id                  # subscription identifier, 0 = none
    u32 at                  # its place there
    match_dests_t* place    # of a key or a node: what it stands among
    dest_t* queue
    subscription_t* next    # in match_t.bindings, by place and queue

# One binding of a consistent hash exchange; its key and argument bytes follow the struct.
cdef struct hash_binding_t:
    match_link_t link       # in match_t.bindings, by key, arguments and destination
    dest_t* dest
    u32 weight
    u32 key_len
    u32 args_len

cdef struct hash_slot_t:
    hash_binding_t* binding
    u64 upto                # sum of the weights up to and with this one

cdef struct hash_point_t:
    hash_binding_t* binding
    u32 at

cdef struct hasher_t:
    bint is_jump
    u32 property            # what to hash on, by its flag; 0: no property
    u8* header              # what to hash on; NULL: the property or the routing key
    u32 header_len
    u32 n_slots
    u32 cap_slots
    u32 n_points
    hash_slot_t* slots      # bindings in their order
    hash_point_t* points    # ring: by position

cdef struct match_t:
    int kind
    bint has_with_x         # headers: a binding has asked for keys beginning with "x-"
    bint default_any        # headers: meaning of a binding without x-match
    u32 count               # bindings
    u64 seed
    u64 key_bits            # headers: which keys occur in patterns, a coarse filter
    match_table_t keys      # direct, fanout, topic, reversed: literal binding keys
    match_table_t nodes     # topic: literal words by (parent, word)
    match_table_t bindings  # headers, hash, filters: bindings by identity
    match_table_t pairs     # headers: pairs by key and value
    # fanout: one per binding; headers: bindings without a pair; random, modulus: every destination
    # once, in the order of binding
    match_dests_t every
    match_dests_t bare      # headers: bindings without any argument
    topic_node_t root
    hasher_t* hasher        # hash only
