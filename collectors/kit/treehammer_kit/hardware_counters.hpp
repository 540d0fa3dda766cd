// Counters of the processor for the loop, through perf_event_open, where the kernel offers them.
#ifndef TREEHAMMER_HARDWARE_COUNTERS
#define TREEHAMMER_HARDWARE_COUNTERS

#include <RtypesCore.h>

#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace treehammer {

/// Counters of this thread and of the threads that it starts after they are opened, in user mode.
class HardwareCounters {
   struct Reading {
      std::uint64_t value = 0, enabled = 0, running = 0;
   };
   std::vector<int> fDescriptors; // -1 where the kernel refuses the event
   std::vector<Reading> fBefore;

   static Reading Read(int descriptor)
   {
      Reading now;
      return descriptor >= 0 && ::read(descriptor, &now, sizeof now) == sizeof now ? now : Reading();
   }

   /// -1 if the counter shared the hardware with others and ran only in part.
   static Long64_t Increase(const Reading &before, const Reading &now)
   {
      const bool complete = now.enabled > 0 && now.running - before.running == now.enabled - before.enabled;
      return complete ? Long64_t(now.value - before.value) : -1;
   }

public:
   std::vector<Long64_t> counts; // of the last loop, in the order of Open; -1 is unknown
   std::string problems;         // reasons for refused events; empty for none

   /// Open an event by the kernel's type and number; `name` is for messages.
   void Open(const std::string &name, std::uint32_t type, std::uint64_t number)
   {
      perf_event_attr event{};
      event.size = sizeof event;
      event.type = type;
      event.config = number;
      event.disabled = 1;
      event.inherit = 1;
      event.exclude_kernel = 1; // what an ordinary user may count
      event.exclude_hv = 1;
      event.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
      const int descriptor = ::syscall(SYS_perf_event_open, &event, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
      if (descriptor < 0)
         problems += (problems.empty() ? "" : "; ") + name + ": " + std::strerror(errno);
      fDescriptors.push_back(descriptor);
      counts.push_back(-1);
   }

   void OpenHardwareEvents()
   {
      Open("instructions", PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS);
      Open("cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES);
      Open("cache misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES);
   }

   void Start()
   {
      fBefore.clear();
      for (int descriptor : fDescriptors) {
         fBefore.push_back(Read(descriptor)); // a reset would leave out what earlier threads counted
         if (descriptor >= 0)
            ::ioctl(descriptor, PERF_EVENT_IOC_ENABLE, 0);
      }
   }

   void Stop()
   {
      for (std::size_t i = 0; i < fDescriptors.size(); ++i)
         if (fDescriptors[i] >= 0) {
            ::ioctl(fDescriptors[i], PERF_EVENT_IOC_DISABLE, 0);
            counts[i] = Increase(fBefore[i], Read(fDescriptors[i]));
         }
   }

   Long64_t Count(std::size_t index) const { return index < counts.size() ? counts[index] : -1; }
};

inline HardwareCounters &TheHardwareCounters()
{
   static HardwareCounters counters;
   return counters;
}

/// Open the counters of the loop; return the reasons for refused ones, '' for none.
inline std::string OpenHardwareCounters()
{
   TheHardwareCounters().OpenHardwareEvents();
   return TheHardwareCounters().problems;
}

} // namespace treehammer
#endif
