"""`bench coldstart-idle`: first tokens of requests that are alone, from each place of an adapter, in each mode."""
