"""From data with untrusted labels to a list of wrong ones, a page to review them on, and corrected data."""
