"""What commands in experiments/ share: flags, start and end, the cache of compiled programs."""
