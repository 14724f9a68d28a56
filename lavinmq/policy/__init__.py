"""What operators decide beside the configuration: policies, limits, parameters, as values."""
