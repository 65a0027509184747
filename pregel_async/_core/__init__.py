"""The algorithm, as values in and values out. Open `superstep` first."""
