"""Virtual hosts: their queues, exchanges and bindings, and the rules that clients see."""
