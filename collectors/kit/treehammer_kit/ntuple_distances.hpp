// Positions of the reads of an RNTuple, for which ROOT has no accessor: a file between the reader's page
// source and its own file notes them.
//
// This is the kit's only use of private members of ROOT, whose names were checked in the releases below;
// in others the distances are not known.
#ifndef TREEHAMMER_NTUPLE_DISTANCES
#define TREEHAMMER_NTUPLE_DISTANCES

#include "accounts.hpp"

#include <ROOT/RNTupleReader.hxx>
#include <RVersion.h>

#if ROOT_VERSION_CODE >= ROOT_VERSION(6, 38, 0) && ROOT_VERSION_CODE < ROOT_VERSION(6, 42, 0)
#define TREEHAMMER_NTUPLE_POSITIONS
#include <ROOT/RPageStorageFile.hxx>
#include <ROOT/RRawFile.hxx>
#endif

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace treehammer {

#ifdef TREEHAMMER_NTUPLE_POSITIONS
/// Reads from another file, and notes positions.
class NotedFile : public ROOT::Internal::RRawFile {
   std::unique_ptr<ROOT::Internal::RRawFile> fFile;
   ReadDistances &fDistances;

   void OpenImpl() override { fOptions.fBlockSize = 0; } // the other file has the buffer
   std::uint64_t GetSizeImpl() override { return fFile->GetSize(); }
   std::size_t ReadAtImpl(void *buffer, std::size_t bytes, std::uint64_t offset) override
   {
      fDistances.Add(offset, bytes);
      return fFile->ReadAt(buffer, bytes, offset);
   }
   void ReadVImpl(RIOVec *ranges, unsigned count) override
   {
      for (unsigned i = 0; i < count; ++i)
         fDistances.Add(ranges[i].fOffset, ranges[i].fSize);
      fFile->ReadV(ranges, count);
   }

public:
   NotedFile(std::unique_ptr<RRawFile> file, ReadDistances &distances)
      : RRawFile(file->GetUrl(), ROptions()), fFile(std::move(file)), fDistances(distances)
   {
   }
   std::unique_ptr<RRawFile> Clone() const override { return fFile->Clone(); }
   RIOVecLimits GetReadVLimits() override { return fFile->GetReadVLimits(); }
};

/// Access to a private member, which an explicit instantiation may name.
template <typename Tag, typename Tag::Member member>
struct PrivateMember {
   friend typename Tag::Member Find(Tag) { return member; }
};
template <typename Type, typename Class>
struct MemberOf {
   using Member = Type Class::*;
   friend Member Find(MemberOf);
};
using ROOT::Internal::RMiniFileReader;
using ROOT::Internal::RPageSource;
using ROOT::Internal::RPageSourceFile;
using ROOT::Internal::RRawFile;
using SourceMember = MemberOf<std::unique_ptr<RPageSource>, ROOT::RNTupleReader>;
using FileMember = MemberOf<std::unique_ptr<RRawFile>, RPageSourceFile>;
using BlobMember = MemberOf<RMiniFileReader, RPageSourceFile>;
using BlobFileMember = MemberOf<RRawFile *, RMiniFileReader>;
template struct PrivateMember<SourceMember, &ROOT::RNTupleReader::fSource>;
template struct PrivateMember<FileMember, &RPageSourceFile::fFile>;
template struct PrivateMember<BlobMember, &RPageSourceFile::fReader>;
template struct PrivateMember<BlobFileMember, &RMiniFileReader::fRawFile>;

/// Note the positions of a reader's reads from now on; false where they cannot be known.
inline bool CountDistances(ROOT::RNTupleReader &reader, ReadDistances &distances)
{
   auto *source = dynamic_cast<RPageSourceFile *>((reader.*Find(SourceMember())).get());
   if (!source)
      return false;
   auto &file = source->*Find(FileMember());
   file = std::make_unique<NotedFile>(std::move(file), distances);
   (source->*Find(BlobMember())).*Find(BlobFileMember()) = file.get(); // reads single pages
   return true;
}
#else
inline bool CountDistances(ROOT::RNTupleReader &, ReadDistances &)
{
   return false;
}
#endif

} // namespace treehammer
#endif
