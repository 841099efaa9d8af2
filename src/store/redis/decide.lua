-- Decides requests one after the other, each all or nothing, at one instant.
--
-- ARGV[1] is empty, or a clock for tests: <instant hi, lo, ms for which keys are kept longer>.
-- ARGV[2] is all requests: of each what is to be done, the numbers of its limits and of its keys, and its
-- length in two bytes; then for each limit the letter of its rule (and 128, if it is not enforced) and the
-- numbers that it works with, the cost first; for a refund preceded by a mark. KEYS are those of all limits in
-- the same order. A limit whose size may be another for its key begins with what the caller believes that to be,
-- and has a second key that says what it is. The letter of a limit with a penalty is in upper case, what that
-- works with is behind the rule's numbers, and its key behind the limit's. A request that is all the same as the
-- one before it, but for its keys, one for each limit, is told by one byte.
--
-- The reply is one string, as neither side then has to take it apart into many: the instant, then
-- for each request whether it was allowed, the number of keys whose states follow (of a limit, and of its
-- penalty), and for each how many states it held before, and those. Or else the error that kept it from being
-- decided.
--
-- A caller who worked the numbers out from what is not so is to ask again: nothing is decided, and of each
-- limit the states are told that say what is.
local ACQUIRE, KEEP, PEEK, REFUND, RESET, SAME = 97, 107, 112, 114, 120, 61
local ALLOWED, DENIED, AGAIN, ERROR = 121, 110, 97, 'e'
local SHADOW = 128
local BELIEVED = 111
local rules = {}

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
local length, next_at, next_key = #text, 1, 1
local reply, parts = { pack(STATE, now_hi, now_lo, 0, 0) }, 1

-- What is to be done, and for how many limits.
local what, limits
-- One for each limit of a request, used again by the next request: all that its rule reads, its
-- rule has written before.
local charges = {}

local function rule_for(letter)
  local rule = rule_of(letter)
  rules[letter] = rule
  return rule
end

-- What plain limits don't need.
local seldom
local function rarely()
  if seldom then return seldom end
  arithmetic()
  seldom = {}
  local penalties = penalty()
  -- What each override is.
  local is = {}

  -- Compares an override that a key holds, unless it has expired, with what was believed of it.
  function seldom.compare(i)
    local from = at + 2
    at, key = from + byte(text, at + 1), key + 1
    local raw, hi, lo = read(KEYS[key])
    if hi + lo > 0 and not more(hi, lo, 0, now_hi, now_lo, 0) then raw = '' end
    is[i] = raw
    return raw ~= sub_string(text, from, at - 1)
  end

  -- Says of each limit what is, where a caller has taken something else for granted.
  function seldom.ask_again()
    reply[parts + 1] = char(AGAIN, limits)
    parts = parts + 1
    for i = 1, limits do
      local raw = is[i] or ''
      reply[parts + 1], reply[parts + 2] = char(#raw / SIZE), raw
      parts = parts + 2
    end
  end

  function seldom.forget()
    for i = 1, limits do
      is[i] = nil
    end
  end

  function seldom.penalty()
    local own = { 0, 0, 0, 0, 0, key = KEYS[key] }
    own[1], own[2], own[3], own[4], own[5] = unpack_from(penalties.numbers, text, at)
    at, key = at + 8 * 5, key + 1
    return own
  end

  -- Whether a limit with a penalty has room for a charge, and what the penalty's key held.
  function seldom.is_free(charge, part)
    local own = charge.penalty
    penalties.peek(own)
    reply[part + 1], reply[part + 2] = char(#own.held / SIZE), own.held
    return charge.free and not own.refused
  end

  function seldom.strike()
    for i = 1, limits do
      local charge = charges[i]
      local own = charge.penalty
      if own and own[1] > 0 and not (charge.free or charge[1] == 0 or own.refused) then penalties.strike(own) end
    end
  end

  seldom[REFUND] = function()
    for _ = 1, limits do
      local letter = byte(text, at)
      local rule = rules[letter] or rule_for(letter)
      local numbers, mark = rule.numbers, at + 1
      local charge = { unpack_from(numbers, text, mark + SIZE) }
      charge.key = KEYS[key]
      at, key = mark + SIZE + 8 * (#numbers - 1), key + 1
      rule.rarely().refund(charge, unpack_from(STATE, text, mark))
    end
  end

  seldom[RESET] = function()
    for _ = 1, limits do
      call('DEL', KEYS[key])
      key = key + 1
    end
  end

  -- Keeps an override for a span, or for good.
  seldom[KEEP] = function()
    local hi, lo, one, other = unpack_from('<ddI4I4', text, at)
    if hi < 0 then return call('SET', KEYS[key], pack(STATE, 0, 0, one, other)) end
    hi, lo = add(hi, lo, 0, now_hi, now_lo, 0, 1)
    write(KEYS[key], hi, lo, one, other, hi, lo)
  end

  return seldom
end

-- Decides one request after the other, until something is wrong with one.
local function run()
  while at <= length do
    local decides, is_again, has_penalty = true, false, false
    local first, of, keys, low, high = byte(text, at, at + 4)
    if first == SAME then
      next_at, next_key = at + 1, key + limits
      for i = 1, limits do
        local charge = charges[i]
        charge.key, charge.moved, key = KEYS[key], false, key + 1
      end
    else
      what, limits, next_at, next_key = first, of, at + low + 256 * high, key + keys
      at = at + 5
      if what == REFUND or what == RESET or what == KEEP then
        rarely()[what]()
        decides = false
      else
        if seldom then seldom.forget() end
        for i = 1, limits do
          local charge = charges[i]
          if not charge then
            -- All that a rule notes has its place from the start: a table that grows is made anew.
            charge = {
              0, 0, 0, 0, 0, 0, 0, 0, 0,
              key = '', rule = false, peek = false, shadow = false, penalty = false, free = true, moved = false,
              hi = 0, lo = 0, n = 0, count = 0, stamp = 0, one = false, tick = false,
            }
            charges[i] = charge
          end
          charge.key, charge.moved, charge.one, charge.tick = KEYS[key], false, false, false
          local letter = byte(text, at)
          if letter == BELIEVED then
            is_again = rarely().compare(i) or is_again
            letter = byte(text, at)
          end
          charge.shadow = letter >= SHADOW
          if letter >= SHADOW then letter = letter - SHADOW end
          local is_penalised = letter < 97
          if is_penalised then letter = letter + 32 end
          local rule = rules[letter] or rule_for(letter)
          local numbers = rule.numbers
          charge.rule, charge.peek = rule, rule.peek
          charge[1], charge[2], charge[3], charge[4], charge[5], charge[6], charge[7], charge[8] =
            unpack_from(numbers, text, at + 1)
          at, key = at + 8 * #numbers - 7, key + 1
          if is_penalised then
            charge.penalty, has_penalty = rarely().penalty(), true
          elseif charge.penalty then
            charge.penalty = false
          end
        end
        decides = not is_again
      end
    end
    if decides then
      local room, part = true, parts + 1
      for i = 1, limits do
        local charge = charges[i]
        local free, held = charge.peek(charge)
        charge.free = free
        local size = #held
        reply[part + 1] = size == SIZE and '\1' or size == 0 and '\0' or char(size / SIZE)
        reply[part + 2] = held
        part = part + 2
        if has_penalty and charge.penalty then
          free, part = seldom.is_free(charge, part), part + 2
        end
        -- Who takes nothing needs no room, and nobody does of a limit that is not enforced.
        if not (free or charge[1] == 0 or charge.shadow) then room = false end
      end
      local take = room and what == ACQUIRE
      for i = 1, limits do
        local charge = charges[i]
        if take and charge.free and charge[1] > 0 then
          charge.rule.commit(charge)
        elseif charge.moved and charge[1] > 0 then
          -- What another rate left is paid at this one, whatever is decided; but who asks for nothing changes
          -- nothing.
          charge.rule.rarely().adopt(charge)
        end
      end
      if has_penalty and what ~= PEEK and not room then seldom.strike() end
      reply[parts + 1] = char(room and ALLOWED or DENIED, (part - parts - 1) / 2)
      parts = part
    elseif is_again then
      seldom.ask_again()
    else
      reply[parts + 1] = char(ALLOWED, 0)
      parts = parts + 1
    end
    at, key = next_at, next_key
  end
end

while at <= length do
  local ok, wrong = pcall(run)
  if not ok then
    wrong = sub_string(type(wrong) == 'table' and wrong.err or tostring(wrong), 1, 999)
    -- Redis 6.2 puts where it happened before it, `@user_script: 17: -`, and ends the line.
    wrong = wrong:gsub('^@[^:]*: %d+: ', ''):gsub('^%-', ''):gsub('%s+$', '')
    reply[parts + 1], reply[parts + 2], reply[parts + 3] = ERROR, pack('<I2', #wrong), wrong
    parts = parts + 3
    at, key = next_at, next_key
  end
end
return table.concat(reply, '', 1, parts)
