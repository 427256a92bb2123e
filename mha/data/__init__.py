"""The recorded heads of a trained model, and the script that records them."""
