"""Messages as Arrow columns, compiled from cext/arrow.pyx; needs pyarrow when a batch is taken."""
