# Protocol: AMQP 0-9-1 as the rest of the broker calls it.


cdef void amqp_protocol(protocol_t* p) noexcept nogil:
    """Fill the table."""
    p.walk = amqp_walk
    p.frame_size = amqp_frame_size
    p.deliver = amqp_deliver
    p.confirm = amqp_confirm
    p.refuse = amqp_refuse
    p.give_back = amqp_give_back
    p.heartbeat = amqp_heartbeat
    p.piece_head = 7
    p.piece_tail = 1
    p.piece_begin = amqp_piece_begin
    p.piece_end = amqp_piece_end
    p.grace_ns = 5000000000
