// Progress of a read for the process that waits for it.
#ifndef TREEHAMMER_CURRENT_READ
#define TREEHAMMER_CURRENT_READ

#include <RtypesCore.h>

#include <cstdint>

namespace treehammer {

/// The two ints at an address, 0 for nowhere: the position of the branch that is being read, and the
/// thousandths of the steps that are done.
struct CurrentRead {
   volatile int *fValues;
   explicit CurrentRead(std::uintptr_t address) : fValues(reinterpret_cast<volatile int *>(address)) {}
   void SetPosition(int position)
   {
      if (fValues)
         fValues[0] = position;
   }
   void SetStep(Long64_t step, Long64_t steps)
   {
      if (fValues)
         fValues[1] = static_cast<int>(1000 * step / steps);
   }
};

} // namespace treehammer

#endif
