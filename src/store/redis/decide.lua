  local is_same = byte(text, at) == 61
  local decides, is_again, has_penalty = true, false, false
  local from, name = at + 5, key
  local room, part, changes = true, parts + 1, false
  if is_same then
    next_at, next_key = at + 1, key + limits
  else
    local keys, low, high
    what, limits, keys, low, high = byte(text, at, at + 4)
    next_at, next_key = at + low + 256 * high, key + keys
    noted = limits > 1
    decides = what ~= 114 and what ~= 120 and what ~= 107
    if not decides then
      if seldom then guarded(seldom[what], from, name) else wanted = 1 end
    elseif seldom then
      seldom.forget()
    end
  end
  for i = 1, decides and limits or 0 do
    local charge = noted and charges and charges[i]
    id, name = KEYS[name], name + 1
    if not is_same then
      local size
      letter, size = byte(text, from, from + 1)
      if letter == 111 then
        if not seldom then wanted = 1 break end
        is_again = guarded(seldom.compare, i, KEYS[name], sub_string(text, from + 2, from + 1 + size)) or is_again
        from, name = from + 2 + size, name + 1
        letter = byte(text, from)
      end
      is_shadow = letter >= 128
      if is_shadow then letter = letter - 128 end
      local is_penalised = letter < 97
      if is_penalised then letter = letter + 32 end
      local numbers = '<dddddddd'
      rule = false
      if letter == 119 then
        numbers = '<ddd'
      elseif letter == 107 then
        numbers = '<ddddddd'
      elseif letter ~= 100 and letter ~= 113 then
        rule = rules and rules[letter]
        if not rule then wanted = letter break end
        numbers, noted = rule.numbers, true
      end
      cost, a, b, c, d, e, f, g = unpack_from(numbers, text, from + 1)
      from = from + 8 * #numbers - 7
      one, tick, first = false, false, false
      noted = noted or is_penalised
      if noted then
        charges = charges or {}
        charge = charges[i]
        if not charge then
          -- All that a rule notes has its place from the start: a table that grows is made anew.
          charge = {
            0, 0, 0, 0, 0, 0, 0, 0,
            key = '', letter = 0, rule = false, is_shadow = false, penalty = false, free = true, moved = false,
            hi = 0, lo = 0, n = 0, count = 0, stamp = 0, one = false, tick = false, first = false, first_hi = 0, first_lo = 0,
          }
          charges[i] = charge
        end
        charge.letter, charge.rule, charge.is_shadow, charge.penalty = letter, rule, is_shadow, false
        charge[1], charge[2], charge[3], charge[4], charge[5], charge[6], charge[7], charge[8] = cost, a, b, c, d, e, f, g
        charge.one, charge.tick, charge.first = false, false, false
        if is_penalised then
          if not seldom then wanted = 1 break end
          charge.penalty, has_penalty = seldom.penalty(KEYS[name], from), true
          from, name = from + 40, name + 1
        end
      end
    elseif noted then
      letter, rule, is_shadow, one = charge.letter, charge.rule, charge.is_shadow, charge.one
      cost, a, b, c, d, e, f = charge[1], charge[2], charge[3], charge[4], charge[5], charge[6], charge[7]
    end
    moved = false
    if rule then
      charge.key, charge.moved = id, false
      free, raw = guarded(rule.peek, charge)
      moved = charge.moved
    else
      raw = try('GET', id)
      if raw and #raw ~= 18 then
        wrong = wrong or raw.err and raw or { err = 'UNREADABLE ' .. id .. ' holds something else: delete it' }
        raw = false
      end
      if letter == 100 or letter == 113 then
