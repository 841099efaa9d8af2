-- Decides requests one after the other, each all or nothing, at one instant.
--
-- ARGV[1] is empty, or a clock for tests: <instant hi, lo, ms for which keys are kept longer>.
-- Then, for each request, what is to be done and the number of its limits, a byte each; and for
-- each limit the letter of its rule and the numbers that it works with, the cost first; for a
-- refund preceded by a mark. KEYS are those of all limits in the same order.
--
-- The reply is the instant, then for each request an array: whether it was allowed, and what each
-- key held before. Or else, as text, the error that kept it from being decided.
local ACQUIRE, PEEK, REFUND, RESET = 97, 112, 114, 120
local rules = {
  [99] = sliding_window_counter, [100] = drain, [105] = token_bucket, [108] = log,
  [113] = leaky_bucket_queue, [119] = fixed_window,
}
local made = {}

local time = call('TIME')
local micros = time[1] * 1e6 + time[2]
now_hi = floor(micros / 1e9)
now_lo = micros - now_hi * 1e9
if ARGV[1] ~= '' then
  local hold
  now_hi, now_lo, hold = unpack_from('<ddd', ARGV[1])
  shift = floor(micros / 1000) - (now_hi * 1e6 + floor(now_lo / 1000)) + hold
end

local arg, key = 2, 1

-- The next limit of a request: its rule, its numbers, and where they began.
local function next_charge(offset)
  local text = ARGV[arg]
  local letter = byte(text)
  local rule = made[letter]
  if not rule then
    rule = rules[letter]()
    made[letter] = rule
  end
  -- All that a rule notes has its place from the start: a table that grows is made anew.
  local charge = {
    key = KEYS[key], rule = rule, held = '', hi = 0, lo = 0, n = 0, count = 0, before = 0,
    unpack_from(rule.numbers, text, 2 + offset),
  }
  arg, key = arg + 1, key + 1
  return charge, text
end

local function decide(take, limits)
  local charges, reply, room = { 0 }, { 0, limits > 0 and '' or nil }, true
  for i = 1, limits do
    local charge = next_charge(0)
    local free = charge.rule.peek(charge)
    -- Who takes nothing needs no room.
    room = room and (free or charge[1] == 0)
    charges[i] = charge
    reply[i + 1] = charge.held
  end
  if room then
    reply[1] = 1
    for i = 1, limits do
      local charge = charges[i]
      if take and charge[1] > 0 then charge.rule.commit(charge) end
    end
  end
  return reply
end

local function refund(limits)
  for _ = 1, limits do
    local charge, text = next_charge(SIZE)
    charge.rule.refund(charge, unpack_from(STATE, text, 2))
  end
  return { 1 }
end

local function reset(limits)
  for _ = 1, limits do
    call('DEL', KEYS[key])
    key = key + 1
  end
  return { 1 }
end

local replies = { pack(STATE, now_hi, now_lo, 0, 0) }
while arg <= #ARGV do
  local what, limits = byte(ARGV[arg], 1, 2)
  local next_arg, next_key = arg + 1 + limits, key + limits
  if what == RESET then next_arg = arg + 1 end
  arg = arg + 1
  local ok, reply
  if what == REFUND then
    ok, reply = pcall(refund, limits)
  elseif what == RESET then
    ok, reply = pcall(reset, limits)
  else
    ok, reply = pcall(decide, what == ACQUIRE, limits)
  end
  if not ok then
    reply = type(reply) == 'table' and reply.err or tostring(reply)
  end
  replies[#replies + 1] = reply
  arg, key = next_arg, next_key
end
return replies
