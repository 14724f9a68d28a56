"""What operators decide beside the configuration, as values: policies, limits, parameters."""
