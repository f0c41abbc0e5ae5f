"""Other layers, computed by BaseConv."""
