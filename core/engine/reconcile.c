#include "engine/reconcile.h"

static uint32_t usable(struct kg_pair p)
{
    return p.state <= p.pages ? p.state : 0;
}

struct kg_reuse kg_reconcile(struct kg_pair arena, struct kg_pair tier)
{
    uint32_t a = usable(arena), t = usable(tier);

    if (t > a) {
        return (struct kg_reuse){KG_HOME_TIER, t, arena.pages < t ? arena.pages : t};
    }
    return (struct kg_reuse){a > 0 ? KG_HOME_ARENA : KG_HOME_NONE, a, a};
}
