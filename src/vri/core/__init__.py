"""The mathematics: equations, networks, ways to differentiate, and any `nn.Module` as a classifier."""
