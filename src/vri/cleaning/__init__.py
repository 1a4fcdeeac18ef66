"""From data whose labels nobody trusts to a list of wrong ones, a page to review them on, and corrected data."""
