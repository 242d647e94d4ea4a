"""`unseen advise`: from the user's data to a command, the reasons for it, what it costs and what leaves."""
