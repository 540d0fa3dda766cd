"""Published sites: static pages of a database, with data, feed, badges and a check."""
