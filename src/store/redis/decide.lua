-- Decides requests one after the other, each all or nothing, at one instant.
--
-- ARGV[1] is empty, or a clock for tests: <instant hi, lo, ms for which keys are kept longer>.
-- ARGV[2] is all requests: of each what is to be done, the number of its limits, and its length in
-- two bytes; then for each limit the letter of its rule (and 128, if it is not enforced) and the numbers
-- that it works with, the cost first; for a refund preceded by a mark. KEYS are those of all limits in the same order.
--
-- The reply is one string, as neither side then has to take it apart into many: the instant, then
-- for each request whether it was allowed, the number of limits whose states follow, and for each
-- how many states its key held before, and those. Or else the error that kept it from being decided.
local ACQUIRE, REFUND, RESET = 97, 114, 120
local ALLOWED, DENIED, ERROR = 'y', 'n', 'e'
local SHADOW = 128
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

local text, at, key = ARGV[2], 1, 1
local reply, parts = { pack(STATE, now_hi, now_lo, 0, 0) }, 1

-- One for each limit of a request, used again by the next request: all that its rule reads, its
-- rule has written before.
local charges = {}

-- The next limit of a request: its rule, its numbers, and where they began.
local function next_charge(i, offset)
  local letter = byte(text, at)
  local shadow = letter >= SHADOW
  if shadow then letter = letter - SHADOW end
  local rule = made[letter]
  if not rule then
    rule = rules[letter]()
    made[letter] = rule
  end
  local charge = charges[i]
  if not charge then
    -- All that a rule notes has its place from the start: a table that grows is made anew.
    charge = {
      0, 0, 0, 0, 0, 0, 0, 0, 0,
      key = '', rule = rule, shadow = false, free = true, held = '', hi = 0, lo = 0, n = 0, count = 0, before = 0,
      stamp = 0, moved = false,
    }
    charges[i] = charge
  end
  charge.key, charge.rule, charge.shadow, charge.moved = KEYS[key], rule, shadow, false
  local from, numbers = at + 1 + offset, rule.numbers
  charge[1], charge[2], charge[3], charge[4], charge[5], charge[6], charge[7], charge[8] =
    unpack_from(numbers, text, from)
  at, key = from + 8 * (#numbers - 1), key + 1
  return charge, from - offset
end

local function decide(take, limits)
  local room, part = true, parts + 2
  for i = 1, limits do
    local charge = next_charge(i, 0)
    charge.free = charge.rule.peek(charge)
    -- Who takes nothing needs no room, and nobody does of a limit that is not enforced.
    room = room and (charge.free or charge[1] == 0 or charge.shadow)
    local held = charge.held
    reply[part + 1], reply[part + 2] = char(#held / SIZE), held
    part = part + 2
  end
  take = take and room
  for i = 1, limits do
    local charge = charges[i]
    if take and charge.free and charge[1] > 0 then
      charge.rule.commit(charge)
    elseif charge.moved then
      -- What another rate left is paid at this one, whatever is decided.
      charge.rule.adopt(charge)
    end
  end
  reply[parts + 1], reply[parts + 2] = room and ALLOWED or DENIED, char(limits)
  parts = part
end

local function done()
  reply[parts + 1], reply[parts + 2] = ALLOWED, char(0)
  parts = parts + 2
end

local function refund(limits)
  for i = 1, limits do
    local charge, mark = next_charge(i, SIZE)
    charge.rule.refund(charge, unpack_from(STATE, text, mark))
  end
  done()
end

local function reset(limits)
  for _ = 1, limits do
    call('DEL', KEYS[key])
    key = key + 1
  end
  done()
end

while at <= #text do
  local what, limits, low, high = byte(text, at, at + 3)
  local next_at, next_key = at + low + 256 * high, key + limits
  at = at + 4
  local ok, wrong
  if what == REFUND then
    ok, wrong = pcall(refund, limits)
  elseif what == RESET then
    ok, wrong = pcall(reset, limits)
  else
    ok, wrong = pcall(decide, what == ACQUIRE, limits)
  end
  if not ok then
    wrong = sub_string(type(wrong) == 'table' and wrong.err or tostring(wrong), 1, 999)
    -- Redis 6.2 puts where it happened before it, `@user_script: 17: -`, and ends the line.
    wrong = wrong:gsub('^@[^:]*: %d+: ', ''):gsub('^%-', ''):gsub('%s+$', '')
    reply[parts + 1], reply[parts + 2], reply[parts + 3] = ERROR, pack('<I2', #wrong), wrong
    parts = parts + 3
  end
  at, key = next_at, next_key
end
return table.concat(reply, '', 1, parts)
