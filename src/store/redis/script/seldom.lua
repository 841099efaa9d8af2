-- What plain limits don't need: overrides, penalties, and what decides nothing.
seldom = {}
-- What each override is.
local is = {}

-- Compares an override that a key holds, unless it has expired, with what was believed of it.
function seldom.compare(i, key, believed)
  local raw, hi, lo = read(key)
  if hi + lo > 0 and not more(hi, lo, 0, now_hi, now_lo, 0) then raw = '' end
  is[i] = raw
  return raw ~= believed
end

-- Says of each limit what is, where a caller has taken something else for granted.
function seldom.ask_again()
  reply[parts + 1] = char(97, limits)
  parts = parts + 1
  for i = 1, limits do
    local raw = is[i] or ''
    reply[parts + 1], reply[parts + 2] = char(#raw / 18), raw
    parts = parts + 2
  end
end

function seldom.forget()
  for i = 1, limits do
    is[i] = nil
  end
end

function seldom.penalty(key, from)
  local own = { 0, 0, 0, 0, 0, key = key }
  own[1], own[2], own[3], own[4], own[5] = unpack_from(penalties.numbers, text, from)
  return own
end

-- Whether a limit with a penalty has room for a charge, and what the penalty's key held.
function seldom.is_free(charge, part)
  local own = charge.penalty
  penalties.peek(own)
  reply[part + 1], reply[part + 2] = char(#own.held / 18), own.held
  return charge.free and not own.refused
end

function seldom.strike()
  for i = 1, limits do
    local charge = charges[i]
    local own = charge.penalty
    if own and own[1] > 0 and not (charge.free or charge[1] == 0 or own.refused) then penalties.strike(own) end
  end
end

seldom[114] = function(from, name)
  local refunds = {}
  for i = 1, limits do
    local letter = byte(text, from)
    local rule = rules[letter]
    if not rule then error(letter, 0) end
    local charge = { unpack_from(rule.numbers, text, from + 19) }
    charge.key = KEYS[name]
    refunds[i] = { rule.refund, charge, unpack_from('<I6I4I4I4', text, from + 1) }
    from, name = from + 11 + 8 * #rule.numbers, name + 1
  end
  -- All that may have to be made first is there.
  for _, each in ipairs(refunds) do
    each[1](each[2], each[3], each[4], each[5], each[6])
  end
end

seldom[120] = function(_, name)
  for name = name, name + limits - 1 do
    call('DEL', KEYS[name])
  end
end

-- Keeps an override for a span, or for good.
seldom[107] = function(from, name)
  local hi, lo, one, other = unpack_from('<ddI4I4', text, from)
  if hi < 0 then return call('SET', KEYS[name], pack('<I6I4I4I4', 0, 0, one, other)) end
  hi, lo = add(hi, lo, 0, now_hi, now_lo, 0, 1)
  write(KEYS[name], hi, lo, one, other, hi, lo)
end
