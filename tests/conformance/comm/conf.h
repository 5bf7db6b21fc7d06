/* Options of a plugin from a command line. */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_CONF_H
#define KEDGE_TESTS_CONFORMANCE_COMM_CONF_H

#include <kedge/abi.h>

#include "base/arena.h"

/* The plugin's option struct with its defaults, then each KEY=VALUE of words[n]; other words are
 * left alone. It and its strings live in *a, which the caller has initialised. NULL when a word is
 * no option or no value for it; *what is then why. */
void *comm_conf(const struct kg_plugin *plugin, struct kg_arena *a, char *const *words, int n,
                struct kg_error *what);

#endif
