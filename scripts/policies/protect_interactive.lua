-- Protect interactive traffic: streams first, batch work fills what is left.
--
-- A request that streams its answer has somebody waiting in front of it; one that does not can
-- wait. Streams get priority 10 (for schedulers that honour it) and class "interactive". The rest
-- is class "batch": its answers are capped, it is refused when the queue is long already, it
-- waits while many sequences run, so that a stream that arrives finds a free place, and its
-- drafts are paused when the batch is large, because verifying them would slow every stream.

local busy_share = 0.75   -- of the places, above which batch work waits
local queue_limit = 200   -- waiting sequences above which batch work is refused
local batch_answer = 2048 -- most tokens of a batch answer
local large_batch = 32    -- decoding sequences above which batch work does not draft

function arrive(req, view)
    if req.stream then
        return {class = "interactive", priority = 10}
    end
    if view.waiting > queue_limit then
        return "reject", "the server is busy with interactive requests; batch work is taken again "
            .. "when fewer than " .. queue_limit .. " sequences wait", 503
    end
    return {class = "batch", priority = 0, max_tokens = batch_answer}
end

function admit(req, view)
    if req.class == "batch" and view.running >= busy_share * view.max_running then
        return "defer"
    end
end

function window(class, view)
    if class.class == "batch" and view.batch > large_batch then
        return "pause"
    end
end
