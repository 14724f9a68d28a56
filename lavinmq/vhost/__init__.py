"""One virtual host: its queues, exchanges and bindings, and the rules that clients see."""
