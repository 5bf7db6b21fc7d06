/* A build without the toolkit: host memory only. */
#include "symmem.h"

int symm_cuda_open(struct kg_comm *c, const struct kg_comm_open *args, struct kg_error *err)
{
    (void)c;
    (void)args;
    return kg_fail(err, KG_ECONFIG,
                   "[comm-symmem] memory = cuda: this build has no CUDA (meson -Dcuda=enabled)");
}

void symm_cuda_close(struct kg_comm *c)
{
    (void)c;
}

char *symm_cuda_area(const struct kg_comm *c)
{
    (void)c;
    return NULL;
}

int symm_cuda_run(struct kg_comm *c, enum symm_op op, const struct kg_coll *coll)
{
    (void)c;
    (void)op;
    (void)coll;
    return KG_EINVAL;
}

int symm_cuda_poll(struct kg_comm *c)
{
    (void)c;
    return KG_OK;
}

void symm_cuda_stop(struct kg_comm *c)
{
    (void)c;
}
