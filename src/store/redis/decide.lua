-- Decides requests one after the other, each all or nothing, at one instant.
--
-- ARGV[1] is empty, or a clock for tests: <instant hi, lo, ms for which keys are kept longer>.
-- ARGV[2] is all requests: of each what is to be done, the numbers of its limits and of its keys, and its
-- length in two bytes; then for each limit the letter of its rule (and 128, if it is not enforced) and the
-- numbers that it works with, the cost first; for a refund preceded by a mark. KEYS are those of all limits in
-- the same order. A limit whose size may be another for its key begins with what the caller believes that to be,
-- and has a second key that says what it is. The letter of a limit with a penalty is in upper case, what that
-- works with is behind the rule's numbers, and its key behind the limit's.
--
-- The reply is one string, as neither side then has to take it apart into many: the instant, then
-- for each request whether it was allowed, the number of keys whose states follow (of a limit, and of its
-- penalty), and for each how many states it held before, and those. Or else the error that kept it from being
-- decided.
--
-- A caller who worked the numbers out from what is not so is to ask again: nothing is decided, and of each
-- limit the states are told that say what is.
local ACQUIRE, KEEP, PEEK, REFUND, RESET = 97, 107, 112, 114, 120
local ALLOWED, DENIED, AGAIN, ERROR = 'y', 'n', 'a', 'e'
local SHADOW = 128
local BELIEVED = 111
local rules = {
  [99] = sliding_window_counter, [100] = drain, [105] = token_bucket, [107] = calendar_window, [108] = log,
  [113] = leaky_bucket_queue, [119] = fixed_window,
}
local made = {}
local penalties = nil

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

-- The override that a key holds, unless it has expired.
local function override(key)
  local raw, hi, lo = read(key)
  if hi + lo > 0 and not more(hi, lo, 0, now_hi, now_lo, 0) then return '' end
  return raw
end

-- The next limit of a request: its rule, its numbers, and where they began.
local function next_charge(i, offset)
  local of, again, is = KEYS[key], false, ''
  if byte(text, at) == BELIEVED then
    local length = byte(text, at + 1)
    key = key + 1
    is = override(KEYS[key])
    again = is ~= sub_string(text, at + 2, at + 1 + length)
    at = at + 2 + length
  end
  local letter = byte(text, at)
  local shadow = letter >= SHADOW
  if shadow then letter = letter - SHADOW end
  local is_penalised = letter < 97
  if is_penalised then letter = letter + 32 end
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
      key = '', rule = rule, shadow = false, penalty = false, free = true, held = '', hi = 0, lo = 0, n = 0, count = 0,
      before = 0, stamp = 0, moved = false, again = false, is = '',
    }
    charges[i] = charge
  end
  charge.key, charge.rule, charge.shadow, charge.penalty, charge.moved = of, rule, shadow, false, false
  charge.again, charge.is = again, is
  local from, numbers = at + 1 + offset, rule.numbers
  charge[1], charge[2], charge[3], charge[4], charge[5], charge[6], charge[7], charge[8] =
    unpack_from(numbers, text, from)
  at, key = from + 8 * (#numbers - 1), key + 1
  if is_penalised then
    penalties = penalties or penalty()
    local own = { 0, 0, 0, 0, 0, key = KEYS[key] }
    own[1], own[2], own[3], own[4], own[5] = unpack_from(penalties.numbers, text, at)
    charge.penalty, at, key = own, at + 8 * 5, key + 1
  end
  return charge, from - offset
end

-- Whether a limit with a penalty has room for a charge, and what the penalty's key held.
local function is_free(charge, part)
  local own = charge.penalty
  penalties.peek(own)
  reply[part + 1], reply[part + 2] = char(#own.held / SIZE), own.held
  return charge.free and not own.refused
end

local function strike(limits)
  for i = 1, limits do
    local charge = charges[i]
    local own = charge.penalty
    if own and own[1] > 0 and not (charge.free or charge[1] == 0 or own.refused) then penalties.strike(own) end
  end
end

-- Says of each limit what is, where a caller has taken something else for granted.
local function ask_again(limits)
  reply[parts + 1], reply[parts + 2] = AGAIN, char(limits)
  parts = parts + 2
  for i = 1, limits do
    local is = charges[i].is
    reply[parts + 1], reply[parts + 2] = char(#is / SIZE), is
    parts = parts + 2
  end
end

local function decide(take, counts, limits)
  local again = false
  for i = 1, limits do
    again = next_charge(i, 0).again or again
  end
  if again then return ask_again(limits) end
  local room, part, has_penalty = true, parts + 2, false
  for i = 1, limits do
    local charge = charges[i]
    charge.free = charge.rule.peek(charge)
    local held, free = charge.held, charge.free
    reply[part + 1], reply[part + 2] = char(#held / SIZE), held
    part = part + 2
    if charge.penalty then
      free, part, has_penalty = is_free(charge, part), part + 2, true
    end
    -- Who takes nothing needs no room, and nobody does of a limit that is not enforced.
    room = room and (free or charge[1] == 0 or charge.shadow)
  end
  take = take and room
  for i = 1, limits do
    local charge = charges[i]
    if take and charge.free and charge[1] > 0 then
      charge.rule.commit(charge)
    elseif charge.moved and charge[1] > 0 then
      -- What another rate left is paid at this one, whatever is decided; but who asks for nothing changes nothing.
      charge.rule.adopt(charge)
    end
  end
  if has_penalty and counts and not room then strike(limits) end
  reply[parts + 1], reply[parts + 2] = room and ALLOWED or DENIED, char((part - parts) / 2 - 1)
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

-- Keeps an override for a span, or for good.
local function keep()
  local hi, lo, one, other = unpack_from('<ddI4I4', text, at)
  if hi < 0 then
    call('SET', KEYS[key], pack(STATE, 0, 0, one, other))
  else
    hi, lo = add(hi, lo, 0, now_hi, now_lo, 0, 1)
    write(KEYS[key], hi, lo, one, other, hi, lo)
  end
  done()
end

while at <= #text do
  local what, limits, keys, low, high = byte(text, at, at + 4)
  local next_at, next_key = at + low + 256 * high, key + keys
  at = at + 5
  local ok, wrong
  if what == REFUND then
    ok, wrong = pcall(refund, limits)
  elseif what == RESET then
    ok, wrong = pcall(reset, limits)
  elseif what == KEEP then
    ok, wrong = pcall(keep)
  else
    ok, wrong = pcall(decide, what == ACQUIRE, what ~= PEEK, limits)
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
