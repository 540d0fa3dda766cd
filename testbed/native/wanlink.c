// A long cable, for kernels without netem: a network namespace that is reached through two TUN
// devices, with a delay, a rate and a drop-tail queue in each direction.
//
// usage: wanlink PIDFILE DEVICE NEAR FAR RTT_MS RATE_MBIT CONTROL_PORT
//        wanlink --check
//
// A datagram "RTT_MS RATE_MBIT" to CONTROL_PORT on loopback sets round trip and rate, any other one
// changes nothing; the answer is what holds then.  Packets on their way keep their delay.
// DEVICE with the address NEAR is in the namespace that it is started in.  FAR is in a namespace
// that it makes for itself: enter it through /proc/PID/ns/net.  PIDFILE appears when all is ready.
// From afar the near end and what lies behind other cables to it (NEAR's /24) can be reached.
// Devices and namespace end with the last process in them, and so do these ways.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 65536, BURST = 64, MTU = 9000, DEVICE_QUEUE = 10000 };

typedef struct {
   uint64_t due; // ns
   int size;
   unsigned char *bytes;
} Packet;

typedef struct {
   Packet ring[SLOTS];
   unsigned head, tail;
   uint64_t free_at;  // ns, when the cable has sent all that it was given
   uint64_t last_due; // ns, when the last packet arrives
   unsigned long long packets, bytes, dropped;
} Direction;

// Delay one way, and how many bytes may wait: three round trips, at least 2 MB.
typedef struct {
   double rtt_ms, rate_mbit, ns_per_byte;
   uint64_t delay, queue;
} Link;

static Direction directions[2];
static Link cable;
static volatile sig_atomic_t stopped;

static void stop(int number)
{
   (void)number;
   stopped = 1;
}

static void fail(const char *what)
{
   fprintf(stderr, "wanlink: ");
   perror(what);
   exit(1);
}

static uint64_t now(void)
{
   struct timespec t;
   clock_gettime(CLOCK_MONOTONIC, &t);
   return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int open_device(const char *name)
{
   int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
   struct ifreq request = {0};
   if (fd < 0)
      fail("/dev/net/tun");
   strncpy(request.ifr_name, name, IFNAMSIZ - 1);
   request.ifr_flags = IFF_TUN | IFF_NO_PI;
   if (ioctl(fd, TUNSETIFF, &request))
      fail(name);
   return fd;
}

static void ask(int fd, unsigned long what, struct ifreq *request, const char *name)
{
   if (ioctl(fd, what, request))
      fail(name);
}

static void set_address(int fd, unsigned long what, struct ifreq *request, const char *text)
{
   struct sockaddr_in *to = (struct sockaddr_in *)&request->ifr_addr;
   memset(to, 0, sizeof *to);
   to->sin_family = AF_INET;
   if (inet_pton(AF_INET, text, &to->sin_addr) != 1 || ioctl(fd, what, request))
      fail(text);
}

static void bring_up(const char *name, const char *own, const char *peer)
{
   int fd = socket(AF_INET, SOCK_DGRAM, 0);
   struct ifreq request = {0};
   strncpy(request.ifr_name, name, IFNAMSIZ - 1);
   if (own) {
      set_address(fd, SIOCSIFADDR, &request, own);
      set_address(fd, SIOCSIFDSTADDR, &request, peer);
      request.ifr_mtu = MTU;
      ask(fd, SIOCSIFMTU, &request, name);
      request.ifr_qlen = DEVICE_QUEUE;
      ask(fd, SIOCSIFTXQLEN, &request, name);
   }
   ask(fd, SIOCGIFFLAGS, &request, name);
   request.ifr_flags |= IFF_UP;
   ask(fd, SIOCSIFFLAGS, &request, name);
   close(fd);
}

// Lets packets that come from afar go on; only for this device, and only where the kernel lets us.
static void forward(const char *name)
{
   char path[128];
   snprintf(path, sizeof path, "/proc/sys/net/ipv4/conf/%s/forwarding", name);
   FILE *file = fopen(path, "w");
   if (!file || fputs("1\n", file) < 0 || fclose(file))
      fprintf(stderr, "wanlink: distant sites cannot reach each other: %s\n", path);
}

static void add_network(char *name, const char *member)
{
   int fd = socket(AF_INET, SOCK_DGRAM, 0);
   struct rtentry route = {.rt_flags = RTF_UP, .rt_dev = name};
   struct sockaddr_in *to = (struct sockaddr_in *)&route.rt_dst;
   struct sockaddr_in *mask = (struct sockaddr_in *)&route.rt_genmask;
   to->sin_family = mask->sin_family = AF_INET;
   mask->sin_addr.s_addr = htonl(0xffffff00);
   if (inet_pton(AF_INET, member, &to->sin_addr) != 1)
      fail(member);
   to->sin_addr.s_addr &= mask->sin_addr.s_addr;
   if (ioctl(fd, SIOCADDRT, &route))
      fail("route");
   close(fd);
}

static void write_pid(const char *path)
{
   char part[4096];
   snprintf(part, sizeof part, "%s.part", path);
   FILE *file = fopen(part, "w");
   if (!file || fprintf(file, "%d\n", getpid()) < 0 || fclose(file) || rename(part, path))
      fail(path);
}

// Sends what is due; returns when the next packet is.
static uint64_t deliver(const int *fds)
{
   uint64_t time = now(), next = time + 100000000ull;
   for (int d = 0; d < 2; d++) {
      Direction *way = &directions[d];
      while (way->head != way->tail) {
         Packet *packet = &way->ring[way->head % SLOTS];
         if (packet->due > time) {
            if (packet->due < next)
               next = packet->due;
            break;
         }
         if (write(fds[1 - d], packet->bytes, packet->size) < 0)
            way->dropped++;
         free(packet->bytes);
         way->head++;
      }
   }
   return next;
}

static int set_cable(const char *words)
{
   double rtt_ms, rate_mbit;
   if (sscanf(words, "%lf %lf", &rtt_ms, &rate_mbit) != 2 || !(rtt_ms >= 0 && rtt_ms <= 10000) ||
       !(rate_mbit > 0 && rate_mbit <= 1e6))
      return 0;
   uint64_t queue = 3 * rtt_ms * 1e-3 * rate_mbit * 1e6 / 8;
   cable = (Link){rtt_ms, rate_mbit, 8000.0 / rate_mbit, (uint64_t)(rtt_ms * 5e5),
                  queue > 2097152 ? queue : 2097152};
   return 1;
}

static int open_control(int port)
{
   int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
   struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(port)};
   own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
   if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof own))
      fail("control port");
   return fd;
}

static void answer_control(int fd)
{
   char words[64];
   struct sockaddr_in peer;
   socklen_t length = sizeof peer;
   int size = recvfrom(fd, words, sizeof words - 1, 0, (struct sockaddr *)&peer, &length);
   if (size < 0)
      return;
   words[size] = 0;
   set_cable(words);
   size = snprintf(words, sizeof words, "%.10g %.10g", cable.rtt_ms, cable.rate_mbit);
   sendto(fd, words, size, 0, (struct sockaddr *)&peer, length);
}

static void take(Direction *way, int fd)
{
   static unsigned char bytes[65536];
   for (int i = 0; i < BURST; i++) {
      int size = read(fd, bytes, sizeof bytes);
      if (size <= 0)
         return;
      uint64_t time = now();
      if (way->free_at < time)
         way->free_at = time;
      if ((way->free_at - time) / cable.ns_per_byte + size > cable.queue ||
          way->tail - way->head >= SLOTS) {
         way->dropped++;
         continue;
      }
      way->free_at += (uint64_t)(size * cable.ns_per_byte);
      Packet *packet = &way->ring[way->tail % SLOTS];
      packet->bytes = malloc(size);
      if (!packet->bytes)
         fail("memory");
      memcpy(packet->bytes, bytes, size);
      // No packet overtakes another one when the delay has become shorter.
      packet->due = way->free_at + cable.delay;
      if (packet->due < way->last_due)
         packet->due = way->last_due;
      way->last_due = packet->due;
      packet->size = size;
      way->tail++;
      way->packets++;
      way->bytes += size;
   }
}

int main(int count, char **words)
{
   if (count == 2 && !strcmp(words[1], "--check")) {
      close(open_device("thcheck%d"));
      return unshare(CLONE_NEWNET) ? 1 : 0;
   }
   if (count != 8) {
      fprintf(stderr, "usage: wanlink PIDFILE DEVICE NEAR FAR RTT_MS RATE_MBIT CONTROL_PORT\n");
      return 2;
   }
   const char *device = words[2], *near = words[3], *far = words[4];
   char settings[64];
   int fds[2];
   snprintf(settings, sizeof settings, "%s %s", words[5], words[6]);
   if (!set_cable(settings)) {
      fprintf(stderr, "wanlink: RTT_MS is 0 to 10000, RATE_MBIT above 0 and up to 1000000\n");
      return 2;
   }
   int control = open_control(atoi(words[7]));
   signal(SIGTERM, stop);
   signal(SIGINT, stop);
   prctl(PR_SET_TIMERSLACK, 1000);
   fds[0] = open_device(device);
   bring_up(device, near, far);
   forward(device);
   if (unshare(CLONE_NEWNET))
      fail("unshare");
   fds[1] = open_device(device);
   bring_up(device, far, near);
   add_network((char *)device, near);
   bring_up("lo", 0, 0);
   write_pid(words[1]);
   while (!stopped) {
      uint64_t next = deliver(fds), time = now(), wait = next > time ? next - time : 0;
      struct timespec patience = {(time_t)(wait / 1000000000ull), (long)(wait % 1000000000ull)};
      struct pollfd polled[3] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}, {control, POLLIN, 0}};
      if (ppoll(polled, 3, &patience, 0) <= 0)
         continue;
      for (int d = 0; d < 2; d++)
         if (polled[d].revents & POLLIN)
            take(&directions[d], fds[d]);
      if (polled[2].revents & POLLIN)
         answer_control(control);
   }
   for (int d = 0; d < 2; d++)
      printf("%s: %llu packets, %llu bytes, %llu dropped\n", d ? "from afar" : "to afar",
             directions[d].packets, directions[d].bytes, directions[d].dropped);
   return 0;
}
