  -- Of one request: what it asks for of each limit, if it is not like the one before, and whether there is room. Those
  -- that are all the same, of a limit that is alone and plain, are decided in one go, once the first is.
  local fresh = at > alike
  local room, name, part, owing = true, key, parts + 1
  -- Whether one of the limits in quota mode has room, if there are any.
  local quota_has_room
  if fresh then
    from, is_again, has_penalty, allowed = at + 5, false, false, false
    local keys, low, high
    what, limits, keys, low, high = byte(text, at, at + 4)
    next_at, next_key = at + low + 256 * high, key + keys
    takes, noted, decides = what == 97, limits > 1, limits
    if what == 114 or what == 120 or what == 107 then
      decides = 0
      if seldom then guarded(seldom[what], from, name) else wrong = 1 end
    elseif seldom then
      seldom.forget()
    end
  elseif noted then
    next_at = at + 1
    next_key = key + limits
  else
    decides = alike - at + 1
  end
  for i = 1, decides do
    local free, state, offset, expires, hi, lo, written_hi, step, charge
    local id = KEYS[name]
    name = name + 1
    if fresh then
      local size
      letter, size = byte(text, from, from + 1)
      if letter == 111 then
        if not seldom then wrong = 1 break end
        is_again = guarded(seldom.compare, i, KEYS[name], sub_string(text, from + 2, from + 1 + size)) or is_again
        if wrong then break end
        if is_again then takes = false end
        from, name = from + 2 + size, name + 1
        letter = byte(text, from)
      end
      is_shadow = letter >= 128
      if is_shadow then letter = letter - 128 end
      is_quota = letter < 64
      if is_quota then letter = letter + 64 end
      local is_penalised, numbers = letter < 97, '<dddddddddd'
      if is_penalised then letter = letter + 32 end
      one, first = false, false
      if letter == 119 then
        numbers = '<ddd'
      elseif letter == 107 then
        numbers = '<ddddddd'
      elseif letter ~= 100 and letter ~= 113 then
        rule = rules and rules[letter]
        if not rule then wrong = letter break end
        numbers, noted, letter = rule.numbers, true, false
      end
      cost, a, b, c, d, e, f, g, grade, grain = unpack_from(numbers, text, from + 1)
      from = from + 8 * #numbers - 7
      if noted or is_penalised then
        noted, charges = true, charges or {}
        -- What most note has its place from the start, as a table that grows is made anew; by number, as that is found
        -- sooner than a name: from 11 to 16 `first_hi`, `first_lo`, `first`, `one`, `tick` and `latest`, then the
        -- letter, and from 18 to 21 `id`, `state`, `offset` and `expires`.
        if is_penalised or not letter then
          charge = {
            cost, a, b, c, d, e, f, g, grade, grain, 0, 0, false, false, 0, 0, letter, '', false, false, false,
            is_shadow = is_shadow, is_quota = is_quota, rule = not letter and rule, penalty = false, key = '', free = true, moved = false,
            hi = 0, lo = 0, n = 0, count = 0, was_hi = false, was_lo = 0,
          }
        else
          charge = {
            cost, a, b, c, d, e, f, g, grade, grain, 0, 0, false, false, 0, 0, letter, '', false, false, false,
            is_shadow = is_shadow, is_quota = is_quota,
          }
        end
        charges[i] = charge
        if is_penalised then
          if not seldom then wrong = 1 break end
          charge.penalty, has_penalty = seldom.penalty(KEYS[name], from), true
          from, name = from + 40, name + 1
        end
      end
    elseif noted then
      charge = charges[i]
      -- One by one, as several at a time are put somewhere else first.
      letter = charge[17]
      cost = charge[1]
      a = charge[2]
      b = charge[3]
      c = charge[4]
      d = charge[5]
      e = charge[6]
      f = charge[7]
      g = charge[8]
      grade = charge[9]
      grain = charge[10]
      one = charge[14]
      tick = charge[15]
      latest = charge[16]
      first = charge[13]
    end
    if not letter then
      rule = charge.rule
      charge.key, charge.moved = id, false
      free, raw = guarded(rule.peek, charge)
      charge.free = free
      if charge.moved then owing = owing or {} end
    else
      raw = try('GET', id)
      if raw and #raw ~= 18 then
        wrong = wrong or raw.err and raw or { err = 'UNREADABLE ' .. id .. ' holds something else: delete it' }
        raw = false
        if not noted then break end
      end
      if letter == 100 or letter == 113 then
