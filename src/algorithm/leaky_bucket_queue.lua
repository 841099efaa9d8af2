-- The twin of leaky_bucket_queue.rs: a drain from which only the last can leave, as those behind
-- it have been told when they go on.
local function leaky_bucket_queue()
  local rule = drain()

  function rule.refund(charge, mark_hi, mark_lo, mark_rest)
    local raw, hi, lo, rest = read(charge.key)
    if hi == mark_hi and lo == mark_lo and rest == mark_rest then
      rule.give_back(charge, hi, lo, rest, charge[6], charge[7], charge[8])
    end
  end

  return rule
end
