#include <RZip.h>

#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

/// A block of floats with few significant bits, as experiments store them, and its compression.
class PlantedWork {
   static constexpr int fSize = 4096;
   std::vector<unsigned char> fZipped, fPlain;
   double fPerEvent = std::atof(std::getenv("PLANTED_BLOCKS")), fDebt = 0;

public:
   PlantedWork() : fZipped(2 * fSize), fPlain(fSize)
   {
      std::mt19937 generator(1);
      std::normal_distribution<float> normal;
      auto *values = reinterpret_cast<unsigned int *>(fPlain.data());
      for (unsigned int i = 0; i < fSize / sizeof(float); ++i) {
         reinterpret_cast<float &>(values[i]) = normal(generator);
         values[i] &= 0xfffff000;
      }
      int from = fSize, room = fZipped.size(), length = 0;
      R__zipMultipleAlgorithm(1, &from, reinterpret_cast<char *>(fPlain.data()), &room,
                              reinterpret_cast<char *>(fZipped.data()), &length,
                              ROOT::RCompressionSetting::EAlgorithm::kZLIB);
      fZipped.resize(length);
   }

   void Run(Long64_t events)
   {
      for (fDebt += fPerEvent * events; fDebt >= 1; --fDebt) {
         int from = fZipped.size(), room = fSize, length = 0;
         R__unzip(&from, fZipped.data(), &room, fPlain.data(), &length);
         if (length != fSize)
            throw std::runtime_error("the planted block cannot be decompressed");
      }
   }
};
