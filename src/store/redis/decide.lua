  -- Of one request: what it asks for of each limit, if it is not like the one before, and whether there is room.
  local fresh, is_again, has_penalty = at > alike, false, false
  local from
  local room, name, part, owing = true, key, parts + 1
  if fresh then
    from = at + 5
    local keys, low, high
    what, limits, keys, low, high = byte(text, at, at + 4)
    next_at, next_key = at + low + 256 * high, key + keys
    takes, noted, decides = what == 97, limits > 1, what ~= 114 and what ~= 120 and what ~= 107
    if not decides then
      if seldom then guarded(seldom[what], from, name) else wanted = 1 end
    elseif seldom then
      seldom.forget()
    end
  else
    next_at = at + 1
    next_key = key + limits
  end
  local id, state, charge, expires
  for i = 1, decides and limits or 0 do
    local free, hi, lo, written_hi, step
    id, state, expires = KEYS[name], false, false
    name = name + 1
    if fresh then
      local size
      letter, size = byte(text, from, from + 1)
      if letter == 111 then
        if not seldom then wanted = 1 break end
        is_again = guarded(seldom.compare, i, KEYS[name], sub_string(text, from + 2, from + 1 + size)) or is_again
        if is_again then takes = false end
        from, name = from + 2 + size, name + 1
        letter = byte(text, from)
      end
      is_shadow = letter >= 128
      if is_shadow then letter = letter - 128 end
      local is_penalised, numbers = letter < 97, '<dddddddddd'
      if is_penalised then letter = letter + 32 end
      rule, one, first = false, false, false
      if letter == 119 then
        numbers = '<ddd'
      elseif letter == 107 then
        numbers = '<ddddddd'
      elseif letter ~= 100 and letter ~= 113 then
        rule = rules and rules[letter]
        if not rule then wanted = letter break end
        numbers, noted = rule.numbers, true
      end
      cost, a, b, c, d, e, f, g, grade, grain = unpack_from(numbers, text, from + 1)
      from = from + 8 * #numbers - 7
      if noted or is_penalised then
        noted, charges = true, charges or {}
        -- What most note has its place from the start: a table that grows is made anew.
        if rule or is_penalised then
          charge = {
            cost, a, b, c, d, e, f, g, grade, grain, 0, 0, letter = letter, is_shadow = is_shadow, key = '',
            state = false, held = false, expires = false, one = false, tick = false, first = false,
            rule = rule, penalty = false, free = true, moved = false, hi = 0, lo = 0, n = 0, count = 0,
          }
        else
          charge = {
            cost, a, b, c, d, e, f, g, grade, grain, 0, 0, letter = letter, is_shadow = is_shadow, key = '',
            state = false, held = false, expires = false, one = false, tick = false, first = false,
          }
        end
        charges[i] = charge
        if is_penalised then
          if not seldom then wanted = 1 break end
          charge.penalty, has_penalty = seldom.penalty(KEYS[name], from), true
          from, name = from + 40, name + 1
        end
      end
    elseif noted then
      charge = charges[i]
      letter, rule, is_shadow = charge.letter, charge.rule, charge.is_shadow
      cost, a, b, c, d = charge[1], charge[2], charge[3], charge[4], charge[5]
      e, f, g, grade, grain = charge[6], charge[7], charge[8], charge[9], charge[10]
      one, tick, first = charge.one, charge.tick, charge.first
      if first then first_hi, first_lo = charge[11], charge[12] end
    end
    if rule then
      charge.key, charge.moved = id, false
      free, raw = guarded(rule.peek, charge)
      charge.free = free
      if charge.moved then owing = owing or {} end
    else
      raw = try('GET', id)
      if raw and #raw ~= 18 then
        wrong = wrong or raw.err and raw or { err = 'UNREADABLE ' .. id .. ' holds something else: delete it' }
        raw = false
      end
      if letter == 100 or letter == 113 then
