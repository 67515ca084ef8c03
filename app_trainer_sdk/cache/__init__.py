"""What lies below the cache folder: whose it is, who uses it now, and what may go. Torch-free.

``weights`` (files by digest), ``features`` (how results of phases lie there and are sealed), ``folders`` (those
and compiled kernels, each used and removed whole), ``leases`` (who uses what), ``command``. Nothing here
knows how anything gets into the cache.
"""
