#include "conf.h"

#include "opt.h"

#include <string.h>

void *comm_conf(const struct kg_plugin *plugin, struct kg_arena *a, char *const *words, int n,
                struct kg_error *what)
{
    void *conf = kg_arena_zalloc(a, 1, plugin->conf_size + 1);
    int rc = conf == NULL ? KG_ENOMEM : KG_OK;

    if (rc == KG_OK && plugin->opts != NULL)
        rc = kg_opt_defaults(plugin->opts, conf, a, what);
    for (int i = 0; i < n && rc == KG_OK; i++) {
        char key[64];
        const char *value = strchr(words[i], '=');
        if (value == NULL || (size_t)(value - words[i]) >= sizeof(key))
            continue;
        (void)snprintf(key, sizeof(key), "%.*s", (int)(value - words[i]), words[i]);
        const struct kg_opt *row = plugin->opts != NULL ? kg_opt_find(plugin->opts, key) : NULL;
        rc = row == NULL ? kg_fail(what, KG_EINVAL, "comm-%s has no option %s", plugin->name, key)
                         : kg_opt_parse(row, value + 1, conf, a, what);
    }
    return rc == KG_OK ? conf : NULL;
}
