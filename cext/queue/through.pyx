# Through: the way of a message through exchanges that are bound to others.
#
# Called for publishes (channel/route.pyx) and for dead letters, which are no client's.


cdef bint is_target(const targets_t* out, const dest_t* dest) noexcept nogil:
    """targets_have while targets are moved up, which it does not bear."""
    cdef u32 i
    for i in range(out.n):
        if out.items[i] == dest:
            return True
    return False


cdef void route_note_passed(routing_t* r, const exchange_t* root, exchange_t* x,
                            const targets_t* out) noexcept nogil:
    """A message has come to x, which is followed: note what is to be counted, unless it comes by
    the sample. Of what is published to x, which counts it, that is what waits there, and so has
    not passed."""
    cdef sample_t* s = x.followed.history.sample
    if r.is_counted and x == root:
        if not s.is_open:
            s.n_seen -= 1           # and x.n_in grows at once
        return
    if x.delayed != NULL and is_target(out, &x.delayed.dest):
        return
    if s.is_open:
        r.is_key_only = False       # a route that is kept would not see it close
    if is_target(out, &x.followed.dest):
        r.is_key_only = False
        return
    s.next_passed = r.passed
    r.passed = s


cdef int route_nested(routing_t* r, exchange_t* root, const msg_t* m,
                      targets_t* out) noexcept nogil:
    """Fill out, which is empty, with the queues that the keys of m reach over bindings between
    exchanges. r, which is all zero at first, says how far this is when it is tired; at the end
    whether the routing key alone has decided, and which samples m has passed.

    An exchange none of whose bindings matches gives the message to its alternate; if no queue at
    all is reached, those of the other exchanges are asked, too, in the order of the walk.
    Each exchange is visited once per message, so cycles end; iterative, so chains may be long.
    What match_route returns."""
    cdef exchange_t* x
    cdef u32 i, n = 0
    cdef bint is_waiting
    cdef int rc
    if not r.is_begun:
        r.is_begun = True
        r.is_key_only = not has_copies(m)
        if match_take(out, &root.dest):
            return -1
    while r.at < out.n:
        if out.items[r.at].kind == DEST_EXCHANGE:
            x = <exchange_t*>out.items[r.at]
            if not r.is_asking:
                r.is_asking = True
                r.is_key_only = r.is_key_only and x.has_key_routes and x.delayed == NULL
                r.n_matches = out.n + out.n_again
            is_waiting = x.delayed != NULL and is_delayed(x, m.props, m.headers_at)
            if is_waiting:
                r.is_root_waiting = r.is_root_waiting or x == root
                rc = match_take(out, &x.delayed.dest)
            elif x.match.kind == MATCH_FILTERS:
                rc = bridge_match(x, m, out)
            else:
                rc = match_keys(x.match, m, &r.n_keys, out)
            if rc == 0 and x.alternate != NULL and out.n + out.n_again == r.n_matches:
                rc = match_take(out, &x.alternate.dest)
            if rc == 0 and x.history != NULL and not is_waiting and history_wants(m):
                rc = match_take(out, &x.history.dest)
            if rc == 0 and x.followed != NULL and not is_waiting and sample_wants(x):
                rc = match_take(out, &x.followed.dest)
            if rc == 0 and x.bridge != NULL and not (is_waiting or r.is_from_mqtt
                                                     or x.match.kind == MATCH_FILTERS):
                r.is_key_only = False       # QoS and presence count as well
                rc = match_take(out, &x.bridge.dest)
            if rc:
                return rc
            r.is_asking = False
        elif (out.items[r.at].kind == DEST_SUBSCRIPTION
                or (<queue_t*>out.items[r.at]).history == NULL):
            r.n_queues += 1
        r.at += 1
        while r.n_queues == 0 and r.at == out.n and r.n_alternates < out.n:
            x = NULL
            if out.items[r.n_alternates].kind == DEST_EXCHANGE:
                x = (<exchange_t*>out.items[r.n_alternates]).alternate
            r.n_alternates += 1
            if x != NULL and match_take(out, &x.dest):
                return -1
        if match_tired(out, 2):
            return MATCH_TIRED
    for i in range(out.n):
        if out.items[i].kind == DEST_QUEUE:
            out.items[n] = out.items[i]
            n += 1
        elif out.items[i].kind == DEST_SUBSCRIPTION:
            n = bridge_take(out, <const subscription_t*>out.items[i], m, n)
        elif ((<exchange_t*>out.items[i]).followed != NULL
                and (r.is_root_waiting or not r.is_counted or out.items[i] != &root.dest)):
            route_note_passed(r, root, <exchange_t*>out.items[i], out)
    out.n = n
    return 0
