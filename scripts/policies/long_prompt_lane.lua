-- A lane for long prompts: they may use a share of the memory, never all of it.
--
-- A prompt of 100,000 tokens takes as many pages as a hundred short ones and keeps them for
-- minutes. Without a rule a few of them fill the arena and everybody else waits. This script marks
-- long prompts as class "long" when they arrive. When one is first in line for memory it is put
-- off while what is held and promised is above `share` of the arena; shorter requests behind it go
-- ahead meanwhile. So that it is not put off for ever, it is let through after `patience_ms`.
-- A long request is also promised its whole life at once, so that it is not preempted half-way
-- and computed twice.

local long_tokens = 16384
local share = 0.5
local patience_ms = 60000

function arrive(req)
    if req.prompt_tokens >= long_tokens * req.prompts then
        return {class = "long"}
    end
end

function admit(req, view)
    if req.class ~= "long" then
        return nil
    end
    local held = view.page_live_bytes + view.state_live_bytes + view.promised_bytes
    if held + req.need_bytes > share * view.arena_bytes and view.running > 0
        and req.waited_ms < patience_ms then
        return "defer", 200
    end
    return {lifetime = "max"}
end
