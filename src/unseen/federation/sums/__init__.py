"""Secure sums: the server learns the weighted mean of the sites' answers and none of the answers. See docs/secure-sums.md."""
