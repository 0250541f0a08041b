"""What stands on everything else: nothing else in lib imports it."""
