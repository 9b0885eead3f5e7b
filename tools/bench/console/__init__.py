"""What the console costs: its collector, and its pages in a browser."""
