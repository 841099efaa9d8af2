-- See window_peek.lua.
state = pack('<I6I4I4I4', hi, lo, n + cost, 0)
