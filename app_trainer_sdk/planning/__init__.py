"""Planning without torch: what is decided by arithmetic, and the process that is asked for the rest."""
