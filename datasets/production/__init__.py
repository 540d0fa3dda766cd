"""ROOT processes that write and measure dataset files."""
