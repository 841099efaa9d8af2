-- The twin of leaky_bucket_queue.rs: a drain from which only the last can leave, as those behind
-- it have been told when they go on.
local function leaky_bucket_queue()
  local rule = drain()
  rule.refund = rule.refund_last
  return rule
end
