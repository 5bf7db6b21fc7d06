/* Devices and their memory, between the emulator's files. */
#ifndef KEDGE_TESTS_EMU_DEVICE_H
#define KEDGE_TESTS_EMU_DEVICE_H

#include <cstddef>
#include <string>

namespace emu
{

/* Bytes allocated on a device; device < 0: on all. */
unsigned long long bytes_used(int device);
/* Lies where device memory lies, of a live block or not. */
bool is_device(const void *p);
bool is_page_locked(const void *p, size_t bytes);
/* "" when p .. p + bytes lies in one live block, else what is wrong, in words. */
std::string check_device_range(const void *p, size_t bytes);
/* Closes device memory to the host, or opens it. */
void protect_memory(bool on);

} // namespace emu

#endif
