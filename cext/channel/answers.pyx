# Answers: what Python has allowed a link to publish, where the exchange alone does not decide.
#
# Most links only ask about exchanges, and have none of this. A link has to ask about routing keys
# where topic permissions restrict its user, and where dead letters go to an exchange that is not
# there yet. A question is bytes: its kind, the exchange as a short string, then the keys, each
# behind its length of 32 bits. The last answer of each kind is kept, so that a publish which needs
# several finds them all when it is tried again, and many more where keys change.
# That of a publish need not be put together: an ev_len of 0 says that ev_data points at the names.
# An answer holds until the vhost's epoch moves. Messages whose route is kept skip all this.

cdef enum ask_kind:
    ASK_PUBLISH = 0             # exchange and routing key of a message
    ASK_COPIES = 1              # the keys in its CC and BCC
    ASK_LETTER = 2              # where it says that its dead letter goes; no key: with any
    ASK_LETTER_KEY = 3          # it says the key of its dead letter, and not the exchange

cdef enum ask_result:
    ASK_NOTHING = 0
    ASK_PYTHON = 1              # the question is in the link's ev_data and ev_len
    ASK_NO_MEMORY = -1

cdef enum:
    ANSWER_SLOTS = 1024         # a power of two
    ANSWER_BYTES = 600          # of a question that is kept beyond the next one of its kind


cdef answers_t* link_answers(link_t* l) noexcept nogil:
    """The answers of a link, made when they are needed; NULL out of memory."""
    if l.answers == NULL:
        l.answers = <answers_t*>calloc(1, sizeof(answers_t))
    return l.answers


cdef void answers_clear(answers_t* a) noexcept nogil:
    """Forget all answers."""
    cdef int i
    for i in range(ASK_KINDS):
        free(a.last[i].question)
        a.last[i].question = NULL
    if a.slots == NULL:
        return
    for i in range(ANSWER_SLOTS):
        free(a.slots[i].question)
        a.slots[i].question = NULL


cdef void answers_free(answers_t* a) noexcept nogil:
    if a == NULL:
        return
    answers_clear(a)
    free(a.slots)
    free(a.question)
    free(a)


cdef bint answer_set(answer_t* answer, const u8* question, u32 n, exchange_t* x) noexcept nogil:
    """Whether there was memory for it."""
    cdef u8* copy = <u8*>malloc(n)
    free(answer.question)
    answer.question = copy
    if copy == NULL:
        return False
    memcpy(copy, question, n)
    answer.len = n
    answer.exchange = x
    return True


cdef bint link_allow(link_t* l, const u8* question, u32 n, exchange_t* x) noexcept nogil:
    """Keep the answer yes; x is NULL while there is no exchange of that name. Whether there was
    memory."""
    cdef answers_t* a = link_answers(l)
    cdef answer_t* last
    if a == NULL:
        return False
    if a.epoch != l.vhost.epoch:
        answers_clear(a)
        a.epoch = l.vhost.epoch
    last = &a.last[question[0]]
    if last.question != NULL and a.slots == NULL:   # more than one: keys change
        a.slots = <answer_t*>calloc(ANSWER_SLOTS, sizeof(answer_t))
    if a.slots != NULL and n <= ANSWER_BYTES:
        if not answer_set(&a.slots[hash_bytes(question, n, 0) & (ANSWER_SLOTS - 1)],
                          question, n, x):
            return False
    return answer_set(last, question, n, x)


cdef bint answer_is(const answer_t* answer, const u8* question, u32 n) noexcept nogil:
    return (answer.question != NULL and answer.len == n
            and same_bytes(answer.question, question, n))


cdef answer_t* answers_find(const link_t* l, u32 n) noexcept nogil:
    """The answer to the question of n bytes that was put together last, or NULL."""
    cdef answers_t* a = l.answers
    cdef answer_t* found
    if a.epoch != l.vhost.epoch:
        return NULL
    found = &a.last[a.question[0]]
    if answer_is(found, a.question, n):
        return found
    if a.slots == NULL:
        return NULL
    found = &a.slots[hash_bytes(a.question, n, 0) & (ANSWER_SLOTS - 1)]
    return found if answer_is(found, a.question, n) else NULL


cdef u8* put_strings(u8* p, const u8* value) noexcept nogil:
    """The strings of the value of CC or BCC, at its type, each with its length."""
    cdef u64 n
    cdef u32 size
    if value[0] != c'A':
        return p
    n = be32(value + 1)
    value += 5
    while n:
        size = be32(value + 1)
        p = put_text(p, value + 5, size)
        value += 5 + size
        n -= 5 + <u64>size
    return p


cdef u32 answers_question(answers_t* a, u8 kind, slice_t name, slice_t key,
                          const msg_t* m) noexcept nogil:
    """Put a question together: about a key, if there is one, and those of CC and BCC of m, if there
    is one. Its length, 0 out of memory."""
    cdef u64 need = 6 + <u64>name.n + key.n + (m.props_len if m != NULL else 0)
    cdef u8* p
    if need > a.cap_question:
        free(a.question)
        a.question = <u8*>malloc(need)
        a.cap_question = need if a.question != NULL else 0
        if a.question == NULL:
            return 0
    p = a.question
    p[0] = kind
    p[1] = <u8>name.n
    p = put_slice(p + 2, name.p, name.n)
    if key.p != NULL:
        p = put_text(p, key.p, key.n)
    if m != NULL and m.cc_at:
        p = put_strings(p, m.props + m.cc_at + 3)
    if m != NULL and m.bcc_at:
        p = put_strings(p, m.props + m.bcc_at + 4)
    return <u32>(p - a.question)


cdef exchange_t* link_allowed(const link_t* l, const u8* names) noexcept nogil:
    """The exchange of a publish whose routing key was asked about and is allowed, else NULL."""
    cdef answer_t* answer
    cdef u32 n
    if l.answers == NULL:
        return NULL
    n = answers_question(l.answers, ASK_PUBLISH, short_slice(names),
                         short_slice(names + names[0] + 1), NULL)
    answer = answers_find(l, n) if n else NULL
    return answer.exchange if answer != NULL else NULL


cdef int link_ask(link_t* l, u32 n) noexcept nogil:
    """Have Python asked the question of n bytes that was put together last."""
    l.loop.ev_data = l.answers.question
    l.loop.ev_len = n
    return ASK_PYTHON


cdef void link_ask_publish(link_t* l, const u8* names) noexcept nogil:
    """Have Python asked about exchange and routing key as they stand in a message."""
    l.loop.ev_data = names
    l.loop.ev_len = 0


cdef int copies_ask(link_t* l, const msg_t* m) noexcept nogil:
    """What is to be asked about the keys in CC and BCC of m, whose exchange is not known to the
    link: there its routing keys matter."""
    cdef u32 n
    n = answers_question(l.answers, ASK_COPIES, short_slice(m.names), no_slice(), m)
    if n == 0:
        return ASK_NO_MEMORY
    return link_ask(l, n) if answers_find(l, n) == NULL else ASK_NOTHING


cdef int letter_ask(link_t* l, slice_t name, slice_t key) noexcept nogil:
    """What is to be asked about a dead letter: an answer without a key is for any of them. That to
    a key alone does not depend on the key."""
    cdef u32 n
    if link_answers(l) == NULL:
        return ASK_NO_MEMORY
    if name.p == NULL:
        name.p = <const u8*>b""
        n = answers_question(l.answers, ASK_LETTER_KEY, name, no_slice(), NULL)
        if n and answers_find(l, n) != NULL:
            return ASK_NOTHING
        return link_ask(l, n) if n else ASK_NO_MEMORY
    n = answers_question(l.answers, ASK_LETTER, name, no_slice(), NULL)
    if n and answers_find(l, n) != NULL:
        return ASK_NOTHING
    if n and key.p != NULL:
        n = answers_question(l.answers, ASK_LETTER, name, key, NULL)
        if n and answers_find(l, n) != NULL:
            return ASK_NOTHING
    return link_ask(l, n) if n else ASK_NO_MEMORY
