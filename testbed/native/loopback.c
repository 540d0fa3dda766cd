// Preloaded into XRootD's daemons, which would listen at all addresses of the machine.
//
// LISTEN_ADDRESS: where a socket listens that was bound to any address.
// SOURCE_ADDRESS: where connections come from; a redirector sends readers to the address that a
//                 data server came from, so this is how a door in front of it gets them.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

typedef int (*Call)(int, const struct sockaddr *, socklen_t);

static int address(const char *variable, struct in_addr *found)
{
   const char *text = getenv(variable);
   return text && inet_pton(AF_INET, text, found) == 1;
}

int bind(int fd, const struct sockaddr *to, socklen_t size)
{
   Call real = (Call)dlsym(RTLD_NEXT, "bind");
   if (to && to->sa_family == AF_INET && size >= sizeof(struct sockaddr_in)) {
      struct sockaddr_in own = *(const struct sockaddr_in *)to;
      if (own.sin_addr.s_addr == htonl(INADDR_ANY) && address("LISTEN_ADDRESS", &own.sin_addr))
         return real(fd, (struct sockaddr *)&own, sizeof own);
   }
   return real(fd, to, size);
}

int connect(int fd, const struct sockaddr *to, socklen_t size)
{
   struct sockaddr_in from = {.sin_family = AF_INET};
   if (to && to->sa_family == AF_INET && address("SOURCE_ADDRESS", &from.sin_addr))
      ((Call)dlsym(RTLD_NEXT, "bind"))(fd, (struct sockaddr *)&from, sizeof from);
   return ((Call)dlsym(RTLD_NEXT, "connect"))(fd, to, size);
}
