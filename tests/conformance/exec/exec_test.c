/*
 * Runs the backend cases: exec_test NAME [OPTIONS [MODEL [CASE...]]]. Named cases, and parts of the
 * longest others, wait for KEDGE_FULL=1.
 */
#include "xc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int waits(const char *name, int argc, char **argv)
{
    for (int i = 4; i < argc && xc_sample; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[40];
    size_t n = 0;

#ifdef XC_ON_DEVICE /* a build for machines with a GPU takes no arguments */
    static char *device[] = {"gpu_backend_test", "cuda", "math=exact", XC_ON_DEVICE};

    if (argc < 2) {
        argc = 4;
        argv = device;
    }
#endif
    if (argc < 2) {
        (void)fputs("usage: exec_test NAME [OPTIONS [MODEL]]\n", stderr);
        return 2;
    }
    xc_name = argv[1];
    xc_options = argc > 2 ? argv[2] : "";
    xc_model = argc > 3 ? argv[3] : "";
    const char *full = getenv("KEDGE_FULL");
    xc_sample = argc > 4 && (full == NULL || full[0] != '1');
#ifdef XC_ON_DEVICE
    if (xc_is_absent())
        return 77;
#endif
    for (const struct CMUnitTest *t = xc_path_cases; t->name != NULL; t++) {
        tests[n] = *t;
        n += !waits(t->name, argc, argv);
    }
    for (const struct CMUnitTest *t = xc_contract_cases; t->name != NULL; t++) {
        tests[n] = *t;
        n += !waits(t->name, argc, argv);
    }
    return _cmocka_run_group_tests(xc_name, tests, n, NULL, NULL);
}
