      end
      if noted then
        charge.key, charge.hi, charge.lo, charge.n, charge.stamp = id, hi, lo, n, stamp
        charge.moved, charge.one = moved, one
      end
    end
    if noted then charge.free = free end
    raw = raw or ''
    local size = #raw
    reply[part + 1] = size == 18 and '\1' or size == 0 and '\0' or char(size / 18)
    reply[part + 2] = raw
    part = part + 2
    if has_penalty and charge.penalty then
      free, part = guarded(seldom.is_free, charge, part), part + 2
    end
    -- Who takes nothing needs no room, and nobody does of a limit that is not enforced.
    if not (free or cost == 0 or is_shadow) then room = false end
    -- What another rate left is paid at this one, whatever is decided; but who asks for nothing changes nothing.
    if moved and cost > 0 then changes = true end
  end
  if not (wanted or wrong) and decides and not is_again then
    local take = room and what == 97
    for i = 1, (take or changes) and limits or 0 do
      local charge = noted and charges[i]
      if noted then
        id, letter, rule, free, moved = charge.key, charge.letter, charge.rule, charge.free, charge.moved
        cost, a, hi, lo, n = charge[1], charge[2], charge.hi, charge.lo, charge.n
      end
      if take and free and cost > 0 then
        if rule then
          guarded(rule.commit, charge)
        else
          local state
          if letter == 100 or letter == 113 then
            if noted then
              e, f, g, stamp = charge[6], charge[7], charge[8], charge.stamp
              one, tick, first, first_hi, first_lo =
                charge.one, charge.tick, charge.first, charge.first_hi, charge.first_lo
            end
