"""The mathematics: equations, networks, ways to differentiate, and the view of any `nn.Module` as a classifier."""
