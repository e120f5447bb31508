"""How nodes are executed on other machines: an agent there runs a local executor, which a controller here drives."""
