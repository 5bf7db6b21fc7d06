-- A policy for `kedge bench step --output-tokens`: reads what rules commonly read and lets
-- everybody in, so that what it costs is the asking.

function admit(req, view)
    if req.class == "long" and view.page_live_bytes + view.promised_bytes > view.arena_bytes / 2 then
        return "defer", 100
    end
    if view.running >= view.max_running or req.prompt_tokens > 100000 then
        return "defer"
    end
end
